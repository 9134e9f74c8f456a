"""Measuring what a source, disks and memory deliver. Each part runs in a process of its own (`worker`), which may sleep
in the kernel for ever; `apart` starts it, waits for so long, and goes on without it."""
