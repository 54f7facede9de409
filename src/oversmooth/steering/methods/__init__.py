"""Ways to steer, one file each; `registry` finds every one of them."""
