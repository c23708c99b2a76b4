"""What tests share: a store with scripted failures, a clock that only moves when told, a proxy that loses answers."""
