"""Texts to labels: losses, pooling, augmentation, and a search (tune) that can be trusted."""
