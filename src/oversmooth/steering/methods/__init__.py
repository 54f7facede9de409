"""Ways to steer, one file each; a class registers itself when `oversmooth.steering` imports it."""
