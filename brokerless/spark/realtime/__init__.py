"""Pipelines without micro-batches: Spark's real-time mode between two logs.

Spark 4.1 can run a query as tasks that never end, each pulling rows from a source and pushing them into a sink. Its
Python sources and sinks cannot take part, so two small Java classes do (``bridge.jar``, from ``java/``), and leave
everything about logs to this process:

1. ``feed`` follows the inputs' logs and loads new objects.
2. ``bridge`` gives their rows to the lanes, one a task, over Unix sockets, and takes back what the transform made.
3. ``packer`` puts it back in order, uploads it, and commits it with its position, as the other engine does.
4. ``engine`` starts Spark, and makes sure first that this mode is safe for the plan: Spark must know no operator in it
   that holds rows back, for then a position would be committed before its rows.
"""
