"""Dovonon et al.'s figure 5: histograms of the eigenvalues of H, from weights alone.

    oversmooth reproduce fig5 MODEL... -o fig5.pdf

Published, in words: vision models skew negative, language models are about symmetric. Ours stands beside it as the
share of eigenvalues with negative real part.
"""

FIGURE = "eigenvalues"
PUBLISHED = "published, in words: vision models skew negative, language models are about symmetric"
