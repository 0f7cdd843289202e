"""Words that several parts have for people: sizes, and settings of other engines."""
