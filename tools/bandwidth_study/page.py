def html(document): return ""
