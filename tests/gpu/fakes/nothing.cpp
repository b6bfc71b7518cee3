// A shared library without any of the functions that are looked for: a far too old one.
extern "C" int warpweave_fake_nothing() { return 0; }
