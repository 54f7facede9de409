"""Figures of the papers, and the charts of tables.

    oversmooth reproduce fig2 MODEL... --data DATA -o fig2.pdf
    oversmooth reproduce fig5 MODEL... -o fig5.pdf

Figure 2 of Dovonon et al. draws pretrained vision and language models; no numbers were published beside the drawing.
What it shows is that none of the three notions always holds: HFC/LFC rises in some models and falls in others. Beside
figure 5 stands the share of eigenvalues of H with negative real part.
"""

FIG2, FIG5 = "curves", "eigenvalues"
"""The figures of `report.figures` that they are."""
FIG5_PUBLISHED = "published, in words: vision models skew negative, language models are about symmetric"
