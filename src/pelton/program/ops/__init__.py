"""Rules of the op kinds, one file a family of kinds."""
