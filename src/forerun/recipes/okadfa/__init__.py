"""Language model with orthogonalised kernel attention and direct feedback alignment, judged."""
