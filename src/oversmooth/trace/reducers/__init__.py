"""Reducers: what turns the tokens of a site into a few numbers that stay on the device until the pass has ended."""
