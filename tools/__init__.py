"""Tools of this repository, which are not part of the wheel."""
