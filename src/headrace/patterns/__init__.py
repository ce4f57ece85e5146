"""Complete systems, one folder each: flows, a generator of data, and a plain-Python model of the right answer."""
