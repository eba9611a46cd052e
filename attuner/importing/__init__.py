"""Reads recipes that others wrote: launch scripts, RayJob manifests, argument dumps, configuration files. What is read is data:
nothing of it is executed. `reading.read_source` opens the file; everything behind it is text in, `model.Imported` out."""
