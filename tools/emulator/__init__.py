"""An emulator of AWS on this machine, and deployment to it."""
