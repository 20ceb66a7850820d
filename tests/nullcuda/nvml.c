/* libnvidia-ml.so.1, by which Ray and torch count GPUs without starting CUDA; every other question is refused. */
#include <stdlib.h>
#include <string.h>

int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *num) {
  return *num = getenv("NULLCUDA_DEVICES") ? atoi(getenv("NULLCUDA_DEVICES")) : 1, 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return *device = (void *)(1ul + index), 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned size) { return strncpy(name, "Null GPU", size), 0; }
const char *nvmlErrorString(int status) { return "null NVML"; }
/* torch asks these when memory runs out, to say whose it is */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) { return *device = (void *)1ul, 0; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *num, void *processes) { return *num = 0, 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return 3; } /* not supported */
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return 3; }
int nvmlDeviceGetGpuFabricInfoV(void) { return 3; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13000, 0; }
