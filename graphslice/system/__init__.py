"""The machine: files, processes, threads, the console. No chemistry."""
