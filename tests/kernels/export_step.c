/* Trains logistic regression with step.so, which Executor.export wrote: 100 steps on 32 rows of 4 numbers, 3 classes.
   step(X: float32[32, 4], W: float32[4, 3], b: float32[3], y: float32[32, 3], lr: float32[], result_0: float32[1],
   arena: uint8[772]). The arena is memory to work in. Needs TVM's headers; step.so finds TVM's runtime itself. */
#include <dlpack/dlpack.h>
#include <stdio.h>
#include <tvm/ffi/c_api.h>

#ifndef ROWS
#define ROWS 32
#define ARENA 772
#endif
enum { INPUTS = 4, CLASSES = 3, STEPS = 100 };

int __tvm_ffi_step(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result);

static TVMFFIAny argument(DLTensor* tensor, void* data, int32_t ndim, int64_t* shape) {
  DLTensor made = {data, {kDLCPU, 0}, ndim, {kDLFloat, 32, 1}, shape, NULL, 0};
  *tensor = made;
  TVMFFIAny any = {.type_index = kTVMFFIDLTensorPtr, .v_ptr = tensor};
  return any;
}

int main(void) {
  static float x[ROWS][INPUTS], y[ROWS][CLASSES], w[INPUTS][CLASSES], b[CLASSES], rate = 0.5f, loss[1];
  static _Alignas(64) char arena[ARENA];
  for (int i = 0; i < ROWS; ++i) {
    for (int j = 0; j < INPUTS; ++j) x[i][j] = (float)((i * 7 + j * 13) % 11) / 11;
    y[i][(i * 7 % 11) / 4] = 1;
  }
  int64_t of_x[] = {ROWS, INPUTS}, of_w[] = {INPUTS, CLASSES}, of_b[] = {CLASSES}, of_y[] = {ROWS, CLASSES};
  int64_t of_loss[] = {1}, of_arena[] = {ARENA};
  DLTensor tensors[7];
  TVMFFIAny arguments[] = {
      argument(&tensors[0], x, 2, of_x), argument(&tensors[1], w, 2, of_w),     argument(&tensors[2], b, 1, of_b),
      argument(&tensors[3], y, 2, of_y), argument(&tensors[4], &rate, 0, NULL), argument(&tensors[5], loss, 1, of_loss),
      argument(&tensors[6], arena, 1, of_arena),
  };
  tensors[6].dtype = (DLDataType){kDLUInt, 8, 1};
  for (int i = 0; i < STEPS; ++i) {
    TVMFFIAny result = {0};
    if (__tvm_ffi_step(NULL, arguments, 7, &result) != 0) return 1; /* the error is TVMFFIErrorMoveFromRaised's */
  }
  printf("%.6f %.6f\n", loss[0], w[0][0]);
  return 0;
}
