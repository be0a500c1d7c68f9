"""Spark without JARs: topics as tables and streams through Spark's Python Data Source API (design.md §6).

`spark.read.format("ottla")` takes the options of Spark's own Kafka connector and gives the same columns, so a change from
`kafka` to `ottla` is one word. Nothing here imports the broker.
"""
