"""What everybody relies on so that bad input, full disks, missing libraries and signals end in one clear sentence."""
