"""What is to be computed: pure records and functions, apart from any device."""
