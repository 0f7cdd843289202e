"""Station 6, text out: tokens -> safe pieces of text and stop strings. It chooses no token and ends no request."""
