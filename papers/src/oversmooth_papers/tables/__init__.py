"""The papers' tables and figures, ours beside the published ones: one file each, with recipe, figures and command."""
