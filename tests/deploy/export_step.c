/* Trains logistic regression with the library that dlsys.export wrote: 100 steps on 32 rows of 4 numbers, 3 classes.
   step.h, beside the library, declares step(X, y, W, b, lr, arena, result_0). */
#include "step.h"
#include <stdio.h>

#ifndef ROWS
#define ROWS 32
#endif

int main(void) {
  static float x[ROWS][4], y[ROWS][3], w[4][3], b[3], rate = 0.5f, loss[1];
  static _Alignas(64) char arena[STEP_ARENA];
  for (int i = 0; i < ROWS; ++i) {
    for (int j = 0; j < 4; ++j) x[i][j] = (float)((i * 7 + j * 13) % 11) / 11;
    y[i][(i * 7 % 11) / 4] = 1;
  }
  for (int i = 0; i < 100; ++i)
    if (step(x[0], y[0], w[0], b, &rate, arena, loss) != 0) return 1;
  printf("%.6f %.6f\n", loss[0], w[0][0]);
  return 0;
}
