"""Rows of the GPU catalogue that are derived from TechPowerUp's database."""
