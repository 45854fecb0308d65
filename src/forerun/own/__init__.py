"""Somebody's own data: from rows to a trained, judged model, for every generic workload."""
