"""The truth table of the issue "Clusters": published runs of many GPUs beside what Forerun says of them."""
