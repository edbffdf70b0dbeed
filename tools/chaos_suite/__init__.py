"""tools/chaos and tools/soak: real daemons, faults that are inflicted upon them, and what must hold."""
