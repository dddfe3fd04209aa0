"""Published numbers of serving systems beside ours, for ``trainyard reproduce``.

Every system of the catalog has a module here, named as its entry, that declares ``TABLES``. What ours stand beside is
an example or a figure of the paper, what the authors' program put out, or a closed form; the caption says which.
Requests are generated; where only files of the authors' will do, a table says how to fetch them.
"""
