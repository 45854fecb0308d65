module {
  tt.func public @within_documents(%arg0: !tt.ptr<f32>, %arg1: !tt.ptr<i32>, %arg2: !tt.ptr<f32>) attributes {noinline = false} {
    %cst = arith.constant dense<0.000000e+00> : tensor<64xf32>
    %cst_0 = arith.constant dense<true> : tensor<64xi1>
    %c64_i32 = arith.constant 64 : i32
    %c1_i32 = arith.constant 1 : i32
    %0 = tt.get_program_id x : i32
    %1 = tt.addptr %arg1, %0 : !tt.ptr<i32>, i32
    %2 = tt.load %1 : !tt.ptr<i32>
    %3 = tt.addptr %1, %c1_i32 : !tt.ptr<i32>, i32
    %4 = tt.load %3 : !tt.ptr<i32>
    %5 = arith.cmpi sle, %4, %2 : i32
    cf.cond_br %5, ^bb1, ^bb2
  ^bb1:  // pred: ^bb0
    tt.return
  ^bb2:  // pred: ^bb0
    %6 = scf.for %arg3 = %2 to %4 step %c1_i32 iter_args(%arg4 = %cst) -> (tensor<64xf32>)  : i32 {
      %11 = arith.muli %arg3, %c64_i32 : i32
      %12 = tt.addptr %arg0, %11 : !tt.ptr<f32>, i32
      %13 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
      %14 = tt.splat %12 : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
      %15 = tt.addptr %14, %13 : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
      %16 = tt.load %15 : tensor<64x!tt.ptr<f32>>
      %17 = arith.addf %arg4, %16 : tensor<64xf32>
      scf.yield %17 : tensor<64xf32>
    }
    %7 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %8 = tt.splat %arg2 : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %9 = tt.addptr %8, %7 : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %10 = tt.atomic_rmw fadd, acq_rel, gpu, %9, %6, %cst_0 : (tensor<64x!tt.ptr<f32>>, tensor<64xf32>, tensor<64xi1>) -> tensor<64xf32>
    tt.return
  }
}
