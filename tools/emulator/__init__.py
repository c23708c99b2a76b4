"""An emulator of AWS on this machine, and the deployment to it."""
