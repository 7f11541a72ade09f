"""The life of objects: validation, writes, deletion and garbage collection."""
