"""Planning with analytical models: ranking, ranges, subsets and learned corrections.

This package does not contain the analytical models. They belong to the templates (`anatune.templates`): each template
has a model that predicts the seconds of its schedules. Modules here use these models: `rank` and `joint` rank the
schedules of one or several templates, `plan` holds the answer, `ranges` chooses kernels for a range of extents,
`pruning` selects the schedules worth measuring, `learned` corrects predictions with measurements.
"""
