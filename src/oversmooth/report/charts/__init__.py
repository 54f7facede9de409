"""Every chart of diagnoses, described once: `report.page` and `report.figures` draw it from the same description.

A new chart is a function in a file of this folder::

    @chart(title="Norms", lead="How long tokens are.")
    def norms(models, medium):
        return Drawing([Panel("norms", {**medium.size(210, 190), "data": ..., "mark": ..., "encoding": ...})])

It then has a section of its own in the page, and is a figure among the others.
"""

# In the order in which charts are shown.
from oversmooth.report.charts import changes, depth, references, accuracy, spectra, dominance, further, spans  # noqa: F401, I001
