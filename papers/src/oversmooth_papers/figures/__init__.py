"""Figures of the papers, and the charts of tables."""
