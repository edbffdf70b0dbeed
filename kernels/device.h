// The device interface: what models need from a CPU or a GPU. A model builds a
// network of layers once; each step the device runs it.
#pragma once
