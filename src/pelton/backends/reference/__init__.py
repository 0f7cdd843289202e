"""The reference backend: every op in a few lines of torch. The oracle of the others, made to be read."""
