"""Figures of what anatune answers: ``plot_*`` functions that return plotly figures (extra ``report``)."""
