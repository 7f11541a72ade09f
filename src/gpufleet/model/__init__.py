"""Plain, frozen data that every part of gpufleet shares; no behaviour that needs the outside."""
