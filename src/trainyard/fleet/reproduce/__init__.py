"""Published numbers of policies beside ours, for ``trainyard reproduce``.

Every policy of the catalog has a module here, named as its entry, that declares ``TABLES``. What ours stand beside is
an example of the paper, what the authors' program prints, or a closed form with its source; the caption says which. Jobs
are stated where they are few, or drawn from a seed; where only files of the authors' will do, a table says how to fetch
them.
"""
