"""Tools of this repository; nothing of them is in the wheel."""
