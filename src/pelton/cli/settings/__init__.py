"""The settings of `pelton serve`: their table, where their values come from, and other engines' flags."""
