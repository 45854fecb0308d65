"""Which half of the vocabulary does a text begin with? A recipe of somebody else's, for the tests of this project."""
