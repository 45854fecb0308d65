"""Python code generation: LoRA and QLoRA adapters, syntax, CodeBLEU and pass@k in a sandbox."""
