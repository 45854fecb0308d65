module {
  tt.func public @product(%arg0: !tt.ptr<f16>, %arg1: !tt.ptr<f16>, %arg2: !tt.ptr<f16>, %arg3: i32, %arg4: i32, %arg5: i32, %arg6: i32, %arg7: i32, %arg8: i32) attributes {noinline = false} {
    %cst = arith.constant dense<1.000000e+00> : tensor<32x64xf32>
    %cst_0 = arith.constant dense<0.000000e+00> : tensor<32x64xf32>
    %cst_1 = arith.constant dense<0.000000e+00> : tensor<32x32xf16>
    %c0_i32 = arith.constant 0 : i32
    %c1_i32 = arith.constant 1 : i32
    %c64_i32 = arith.constant 64 : i32
    %c32_i32 = arith.constant 32 : i32
    %0 = tt.get_program_id x : i32
    %1 = arith.muli %0, %c32_i32 : i32
    %2 = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32>
    %3 = tt.splat %1 : i32 -> tensor<32xi32>
    %4 = arith.addi %3, %2 : tensor<32xi32>
    %5 = tt.get_program_id y : i32
    %6 = arith.muli %5, %c64_i32 : i32
    %7 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %8 = tt.splat %6 : i32 -> tensor<64xi32>
    %9 = arith.addi %8, %7 : tensor<64xi32>
    %10 = arith.addi %0, %c1_i32 : i32
    %11 = arith.muli %10, %c32_i32 : i32
    %12 = arith.minsi %arg5, %11 : i32
    %13 = scf.for %arg9 = %c0_i32 to %12 step %c32_i32 iter_args(%arg10 = %cst_0) -> (tensor<32x64xf32>)  : i32 {
      %34 = tt.expand_dims %4 {axis = 1 : i32} : tensor<32xi32> -> tensor<32x1xi32>
      %35 = tt.splat %arg3 : i32 -> tensor<32x1xi32>
      %36 = arith.cmpi slt, %34, %35 : tensor<32x1xi32>
      %37 = tt.splat %arg6 : i32 -> tensor<32x1xi32>
      %38 = arith.muli %34, %37 : tensor<32x1xi32>
      %39 = tt.splat %arg0 : !tt.ptr<f16> -> tensor<32x1x!tt.ptr<f16>>
      %40 = tt.addptr %39, %38 : tensor<32x1x!tt.ptr<f16>>, tensor<32x1xi32>
      %41 = tt.splat %arg9 : i32 -> tensor<32xi32>
      %42 = arith.addi %41, %2 : tensor<32xi32>
      %43 = tt.expand_dims %42 {axis = 0 : i32} : tensor<32xi32> -> tensor<1x32xi32>
      %44 = tt.broadcast %40 : tensor<32x1x!tt.ptr<f16>> -> tensor<32x32x!tt.ptr<f16>>
      %45 = tt.broadcast %43 : tensor<1x32xi32> -> tensor<32x32xi32>
      %46 = tt.addptr %44, %45 : tensor<32x32x!tt.ptr<f16>>, tensor<32x32xi32>
      %47 = tt.broadcast %36 : tensor<32x1xi1> -> tensor<32x32xi1>
      %48 = tt.load %46, %47, %cst_1 : tensor<32x32x!tt.ptr<f16>>
      %49 = tt.expand_dims %42 {axis = 1 : i32} : tensor<32xi32> -> tensor<32x1xi32>
      %50 = tt.splat %arg7 : i32 -> tensor<32x1xi32>
      %51 = arith.muli %49, %50 : tensor<32x1xi32>
      %52 = tt.splat %arg1 : !tt.ptr<f16> -> tensor<32x1x!tt.ptr<f16>>
      %53 = tt.addptr %52, %51 : tensor<32x1x!tt.ptr<f16>>, tensor<32x1xi32>
      %54 = tt.expand_dims %9 {axis = 0 : i32} : tensor<64xi32> -> tensor<1x64xi32>
      %55 = tt.broadcast %53 : tensor<32x1x!tt.ptr<f16>> -> tensor<32x64x!tt.ptr<f16>>
      %56 = tt.broadcast %54 : tensor<1x64xi32> -> tensor<32x64xi32>
      %57 = tt.addptr %55, %56 : tensor<32x64x!tt.ptr<f16>>, tensor<32x64xi32>
      %58 = tt.load %57 : tensor<32x64x!tt.ptr<f16>>
      %59 = tt.dot %48, %58, %arg10, inputPrecision = tf32 : tensor<32x32xf16> * tensor<32x64xf16> -> tensor<32x64xf32>
      scf.yield %59 : tensor<32x64xf32>
    }
    %14 = arith.truncf %13 : tensor<32x64xf32> to tensor<32x64xf16>
    %15 = arith.extf %14 : tensor<32x64xf16> to tensor<32x64xf32>
    %16 = arith.negf %15 : tensor<32x64xf32>
    %17 = math.exp %16 : tensor<32x64xf32>
    %18 = arith.addf %17, %cst : tensor<32x64xf32>
    %19 = arith.divf %cst, %18 : tensor<32x64xf32>
    %20 = arith.truncf %19 : tensor<32x64xf32> to tensor<32x64xf16>
    %21 = arith.mulf %14, %20 : tensor<32x64xf16>
    %22 = tt.expand_dims %4 {axis = 1 : i32} : tensor<32xi32> -> tensor<32x1xi32>
    %23 = tt.splat %arg3 : i32 -> tensor<32x1xi32>
    %24 = arith.cmpi slt, %22, %23 : tensor<32x1xi32>
    %25 = tt.splat %arg8 : i32 -> tensor<32x1xi32>
    %26 = arith.muli %22, %25 : tensor<32x1xi32>
    %27 = tt.splat %arg2 : !tt.ptr<f16> -> tensor<32x1x!tt.ptr<f16>>
    %28 = tt.addptr %27, %26 : tensor<32x1x!tt.ptr<f16>>, tensor<32x1xi32>
    %29 = tt.expand_dims %9 {axis = 0 : i32} : tensor<64xi32> -> tensor<1x64xi32>
    %30 = tt.broadcast %28 : tensor<32x1x!tt.ptr<f16>> -> tensor<32x64x!tt.ptr<f16>>
    %31 = tt.broadcast %29 : tensor<1x64xi32> -> tensor<32x64xi32>
    %32 = tt.addptr %30, %31 : tensor<32x64x!tt.ptr<f16>>, tensor<32x64xi32>
    %33 = tt.broadcast %24 : tensor<32x1xi1> -> tensor<32x64xi1>
    tt.store %32, %21, %33 : tensor<32x64x!tt.ptr<f16>>
    tt.return
  }
}
