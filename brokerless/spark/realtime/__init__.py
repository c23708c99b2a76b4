"""Pipelines without micro-batches: Spark's real-time mode between two logs.

Spark 4.1 can run a query as tasks that never end, each of which reads rows from a source and writes them to a sink.
Its Python sources and sinks do not support that, so two small Java classes do (``bridge.jar``, from ``java/``):

1. ``requirements`` checks that this mode is safe for the plan: no operator that Spark knows to hold rows back.
2. ``feed`` follows the inputs' logs and loads new objects.
3. ``bridge`` sends their rows to the lanes, one per task, over sockets, and receives the transformed rows.
4. ``packer`` puts these in order, uploads them, and commits them with their position, as the other engine does.
"""
