"""Figures of the papers, and the charts of tables.

    oversmooth reproduce fig2 MODEL... --data DATA -o fig2.pdf
    oversmooth reproduce fig5 MODEL... -o fig5.pdf

No numbers were published beside the drawings. Figure 2 shows that none of the three notions always holds.
"""

FIG2, FIG5 = "curves", "eigenvalues"
"""The figures of `report.figures` that they are."""
FIG5_PUBLISHED = "published, in words: vision models skew negative, language models are about symmetric"
