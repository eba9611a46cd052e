"""Compares proposers on replay tables (`play`) or on a real cluster (`local`); `table` and `page` tell what came of it."""
