"""Dovonon et al.'s figure 2: the three notions of smoothing per layer, for models on real data.

    oversmooth reproduce fig2 MODEL... --data DATA -o fig2.pdf

The paper draws pretrained vision and language models; no numbers were published beside the drawing. What it shows is
that none of the three notions always holds: HFC/LFC rises in some models and falls in others.
"""

FIGURE = "curves"
"""The figure of `report.figures` that it is."""
