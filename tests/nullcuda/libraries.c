/* Those functions of cuBLAS, cuDNN and NCCL of which torch reads an answer; build.py makes the others. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static long object;

int cublasCreate_v2(void **handle) { return *handle = &object, 0; }
int cublasGetMathMode(void *handle, int *mode) { return *mode = 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0; }
size_t cublasLtGetVersion(void) { return 130401; }
int cublasLtMatmulDescCreate(void **made, int compute, int scale) { return *made = malloc(256), 0; }
int cublasLtMatmulDescDestroy(void *made) { return free(made), 0; }
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  return *made = malloc(256), 0;
}
int cublasLtMatrixLayoutDestroy(void *made) { return free(made), 0; }
int cublasLtMatmulPreferenceCreate(void **made) { return *made = malloc(256), 0; }
typedef struct { char algorithm[64]; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;
int cublasLtMatmulAlgoGetHeuristic(void *lt, void *op, void *a, void *b, void *c, void *d, void *preference, int asked,
                                   Heuristic *found, int *num) {
  *found = (Heuristic){0};
  return *num = 1, 0;
}

size_t cudnnGetVersion(void) { return 92600; }
size_t cudnnGetCudartVersion(void) { return 13020; }
const char *cudnnGetErrorString(int status) { return "null cuDNN"; }
void cudnnGetLastErrorString(char *message, size_t size) {
  if (size) message[0] = 0;
}
typedef struct { int algorithm, status; float time; size_t memory; int determinism, math, reserved[3]; } Found;
#define ALGORITHM(name)                                                                                 \
  int name(void *handle, void *a, void *b, void *conv, void *c, int asked, int *num, Found *found) {    \
    *found = (Found){.algorithm = 1, .math = 3};                                                        \
    return *num = 1, 0;                                                                                 \
  }
ALGORITHM(cudnnGetConvolutionForwardAlgorithm_v7)
ALGORITHM(cudnnGetConvolutionBackwardDataAlgorithm_v7)
ALGORITHM(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
#define WORKSPACE(name) \
  int name(void *handle, void *a, void *b, void *conv, void *c, int algorithm, size_t *size) { return *size = 0, 0; }
WORKSPACE(cudnnGetConvolutionForwardWorkspaceSize)
WORKSPACE(cudnnGetConvolutionBackwardDataWorkspaceSize)
WORKSPACE(cudnnGetConvolutionBackwardFilterWorkspaceSize)
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int ops, void *x, void *z, void *y,
                                                             void *scale, void *activation, size_t *size) {
  return *size = 0, 0;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int ops, void *x, void *y, void *dy,
                                                      void *dz, void *dx, void *scale, void *activation, size_t *size) {
  return *size = 0, 0;
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int ops, void *activation, void *x,
                                                         size_t *size) {
  return *size = 0, 0;
}

typedef struct { char bytes[128]; } Id;
int ncclGetVersion(int *version) { return *version = 23007, 0; }
int ncclGetUniqueId(Id *id) { return memset(id, 7, sizeof *id), 0; }
int ncclCommInitRank(void **made, int num, Id id, int rank) { return *made = &object, 0; }
int ncclCommInitRankConfig(void **made, int num, Id id, int rank, void *config) { return *made = &object, 0; }
int ncclCommInitRankScalable(void **made, int num, int rank, int ids, void *id, void *config) {
  return *made = &object, 0;
}
int ncclCommSplit(void *of, int colour, int key, void **made, void *config) { return *made = &object, 0; }
int ncclCommGetAsyncError(void *of, int *error) { return *error = 0; }
int ncclCommCount(void *of, int *num) { return *num = 1, 0; }
const char *ncclGetErrorString(int status) { return "null NCCL"; }
const char *ncclGetLastError(void *of) { return ""; }
