"""Tools for programs that speak the Model Context Protocol (MCP), over standard input and output."""
