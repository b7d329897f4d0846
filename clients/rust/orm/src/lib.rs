//! The tests of what works with the whole statement only.
